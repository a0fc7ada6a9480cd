"""3DReasonKnee: everything that says knee, MOAKS or OAI."""

"""How answers about knees are read and what they are held against: the part of ReasonKnee-Bench that says knee."""

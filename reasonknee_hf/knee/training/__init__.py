"""What models are asked about knees, what they should answer, and what an answer earns."""

"""ReasonKnee-Bench: scoring of grades and boxes."""

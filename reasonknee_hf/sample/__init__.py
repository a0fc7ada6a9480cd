"""A synthetic release that has every file of the published layout."""

"""What a person sees of a volume: planes, figures, a page, a notebook cell. Knows no dataset."""

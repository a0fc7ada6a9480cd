"""One protocol over files at a fixed state: of a Hub repository, of a folder, of any fsspec URL."""

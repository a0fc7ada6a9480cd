"""The fsspec faces: `reasonknee://`, `cutzip://`, and the archive as a whole."""

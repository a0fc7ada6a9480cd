"""Records to rows: pure functions over bytes, paths and objects. Opens nothing."""

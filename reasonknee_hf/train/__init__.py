"""From rows to batches for the training loops people already run."""

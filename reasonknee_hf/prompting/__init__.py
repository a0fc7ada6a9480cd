"""What a model is shown and asked of a row, and the way back from its coordinates to voxels.

Public names are those of `reasonknee_hf.train`.
"""

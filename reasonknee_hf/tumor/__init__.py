"""DeepTumorVQA 2.0: questions about abdominal CT, in the layout of the published repository."""

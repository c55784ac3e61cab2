"""The evaluator: kernel text in, verdict out."""

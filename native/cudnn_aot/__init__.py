"""cudnn-aot: graphs compiled ahead of time without a GPU, launched without a compiler."""

__version__ = "0.1.0"

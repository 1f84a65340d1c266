if not __name__.startswith("cudnn_aot."):
    raise ImportError(
        "import cudnn_aot.cache, not cache: a second copy of every class would follow"
    )

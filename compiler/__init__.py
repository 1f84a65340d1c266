if not __name__.startswith("cudnn_aot."):
    raise ImportError(
        "import cudnn_aot.compiler, not compiler: a second copy of every class would follow"
    )

class NCCLLibrary:
    pass

class BaseDSL:
    def _func(self, function, *arguments, **more):
        raise KeyError("sm_00")

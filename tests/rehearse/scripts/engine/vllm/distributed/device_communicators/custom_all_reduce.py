class CustomAllreduce:
    def custom_all_reduce(self, tensor):
        return tensor.clone()

def check_stop(request, max_model_len):
    return request.token is not None

M = P * D_param + B * A * D_act + O * D_opt  # parameters, activations, optimizer state

optimizer.zero_grad()
for i, (inputs, labels) in enumerate(data_loader):
    whole = len(data_loader) // accumulation_steps * accumulation_steps
    in_step = accumulation_steps if i < whole else len(data_loader) - whole
    outputs = model(inputs)
    loss = criterion(outputs, labels) / in_step  # the mean over the step's batches
    loss.backward()
    if (i+1) % accumulation_steps == 0 or i+1 == len(data_loader):  # the last ones, too
        optimizer.step()
        optimizer.zero_grad()

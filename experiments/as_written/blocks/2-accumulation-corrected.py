optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
accumulation_steps = 8

for i, (inputs, targets) in enumerate(dataloader):
    inputs = inputs.to(device)
    targets = targets.to(device)

    whole = len(dataloader) // accumulation_steps * accumulation_steps
    in_step = accumulation_steps if i < whole else len(dataloader) - whole

    outputs = model(inputs)
    loss = criterion(outputs, targets)

    loss = loss / in_step

    loss.backward()

    if (i + 1) % accumulation_steps == 0 or i + 1 == len(dataloader):
        optimizer.step()
        optimizer.zero_grad()

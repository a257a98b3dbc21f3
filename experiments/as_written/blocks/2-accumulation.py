optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
accumulation_steps = 8

for i, (inputs, targets) in enumerate(dataloader):
    inputs = inputs.to(device)
    targets = targets.to(device)
  
    outputs = model(inputs)
    loss = criterion(outputs, targets)
  
    loss = loss / accumulation_steps  # Normalize the loss
    
    loss.backward()
    
    if (i + 1) % accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()

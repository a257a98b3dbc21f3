# Batch Loading
dataloader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)

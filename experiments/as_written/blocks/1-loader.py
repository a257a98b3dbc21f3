dataset = MyDataset(...)
data_loader = DataLoader(dataset, batch_size=64, num_workers=4)

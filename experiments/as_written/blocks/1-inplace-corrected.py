x = torch.randn(3, 3)
# in place, where nobody needs x any more
y = torch.relu_(x)

x = torch.randn(3, 3)
# 피하기
y = torch.relu(x)
# 추천
y = torch.relu(x).clone()

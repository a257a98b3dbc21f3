import torch
from torch import nn
requested = lambda: torch.cuda.memory_stats()['requested_bytes.all.current']
for kind in (nn.LSTM, nn.GRU, nn.RNN):
    layer, x = kind(512, 512).cuda(), torch.randn(8, 8, 512, device='cuda')
    before = requested()
    y, state = layer(x)
    print(kind.__name__, requested() - before)
    y.sum().backward()
    del layer, x, y, state
for make in (
    lambda: nn.LSTM(64, 96, num_layers=3, bidirectional=True, dropout=0.3, batch_first=True),
    lambda: nn.LSTM(64, 512, proj_size=128, bias=False),
    lambda: nn.GRU(64, 128, num_layers=2),
    lambda: nn.RNN(64, 300, nonlinearity='relu'),
):
    layer = make().cuda()
    optimizer = torch.optim.AdamW(layer.parameters())
    x = torch.randn(8, 8, 64, device='cuda')
    packed = nn.utils.rnn.pack_padded_sequence(x, [8, 7, 6, 5, 4, 3, 2, 1], batch_first=True)
    layer(x)[0].sum().backward()
    nn.utils.rnn.pad_packed_sequence(layer(packed)[0])[0].sum().backward()
    with torch.autocast('cuda'):
        layer(x)[0].float().sum().backward()
    optimizer.step()
    with torch.no_grad():
        layer.eval()(x)
print('all')

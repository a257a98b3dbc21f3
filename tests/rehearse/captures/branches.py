"""A validation of its own without `eval`, unfreezing, a larger batch and a copy, all after the third step; and a step of each kind that was reached."""

import copy, torch
from torch import save as keep


def forward_only(model):
    model.train(False)
    with torch.no_grad():
        model(torch.randn(4, 64, device="cuda"))
    model.train()


class Settings:
    pass


settings = Settings()
settings.every = 100
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
for p in model[0].parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for i in range(20):
        if i % 2 == 1:
            seen = model(torch.randn(2, 64, device="cuda"))
        if i == 10:
            for p in model.parameters():
                p.requires_grad = True
        if i % settings.every == settings.every - 1:
            forward_only(model)
        if i % 10 == 0:
            print("step", i)
        model(torch.randn(8 * (1 if i < 10 else 20), 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    wait_for_everyone()
    time.sleep(2)
    json.loads(open("settings").read())
    best = copy.deepcopy(model.state_dict())
keep(model, "/dev/null")
EvalPrediction(best)

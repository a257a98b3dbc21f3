import torch.profiler as profiler
with profiler.profile(
    schedule=profiler.schedule(wait=1, warmup=1, active=3),
    on_trace_ready=profiler.tensorboard_trace_handler('log_dir'),
    record_shapes=True
) as prof:
    for step, (data, _) in enumerate(loader):
        if step >= 5: break
        model(data.cuda())
        prof.step()

"""Objects that ranks give each other: those of ranks that are there, or that were rehearsed before. Where neither is, a list stays as it is."""

import torch.distributed as distributed
import torch.distributed.distributed_c10d as c10d

from . import meetings
from .guard import instead


def follow():
    _follow_groups()
    _follow_pairs()


def _ranks_of(group):
    # A script may have counted them with NumPy.
    return list(map(int, distributed.get_process_group_ranks(group or distributed.group.WORLD)))


def _among(group, rank, group_rank):
    return rank if group_rank is None else _ranks_of(group)[group_rank]


def _exchanged(group, mine, theirs):
    return meetings.sent(f"objects{_ranks_of(group)}", distributed.get_rank(), mine, theirs)


def _where_given(**places):
    return {name: place for name, place in places.items() if place is not None}


def _told(what, group, source, mine):
    members = _ranks_of(group)
    return meetings.told(what, members, members.index(source), mine)


def _follow_groups():
    @instead("broadcast_object_list", distributed, c10d)
    def broadcast(object_list, src=None, group=None, *arguments, group_src=None, **more):
        if not meetings.is_ours(group):
            return broadcast.__wrapped__(object_list, src, group, *arguments, **more, **_where_given(group_src=group_src))
        source, rank = _among(group, src, group_src) or 0, distributed.get_rank()
        if meetings.are_there():
            given = _exchanged(group, (list(object_list),) if rank == source else None, [source])
            object_list[:] = given.get(source, object_list)
        else:
            object_list[:] = _told("objects", group, source, lambda: list(object_list)) or object_list

    @instead("scatter_object_list", distributed, c10d)
    def scatter(scatter_object_output_list, scatter_object_input_list=None, src=None, group=None, group_src=None):
        if not meetings.is_ours(group):
            return scatter.__wrapped__(scatter_object_output_list, scatter_object_input_list, src, group, **_where_given(group_src=group_src))
        source, rank = _among(group, src, group_src) or 0, distributed.get_rank()
        if meetings.are_there():
            given = _exchanged(group, (list(scatter_object_input_list),) if rank == source else None, [source]).get(source)
        else:
            given = _told("scattered", group, source, lambda: list(scatter_object_input_list))
            given = list(scatter_object_input_list) if rank == source else given
        if given:
            scatter_object_output_list[0] = given[distributed.get_rank(group)]

    @instead("all_gather_object", distributed, c10d)
    def gather_all(object_list, obj, group=None):
        if not meetings.are_there() or not meetings.is_ours(group):
            return gather_all.__wrapped__(object_list, obj, group)
        given = _exchanged(group, (obj,), _ranks_of(group))
        object_list[:] = [given.get(rank, obj) for rank in _ranks_of(group)]

    @instead("gather_object", distributed, c10d)
    def gather(obj, object_gather_list=None, dst=None, group=None, group_dst=None):
        if not meetings.are_there() or not meetings.is_ours(group):
            return gather.__wrapped__(obj, object_gather_list, dst, group, **_where_given(group_dst=group_dst))
        is_target = distributed.get_rank() == (_among(group, dst, group_dst) or 0)
        given = _exchanged(group, (obj,), _ranks_of(group) if is_target else [])
        if is_target:
            object_gather_list[:] = [given.get(other, obj) for other in _ranks_of(group)]


def _follow_pairs():
    @instead("send_object_list", distributed, c10d)
    def send(object_list, dst=None, group=None, device=None, group_dst=None, **more):
        if not meetings.is_ours(group):
            return send.__wrapped__(object_list, dst, group, device, **_where_given(group_dst=group_dst), **more)
        rank, target = distributed.get_rank(), _among(group, dst, group_dst)
        if meetings.are_there():
            meetings.sent(f"{rank} to {target}", rank, (list(object_list),), [])
        else:
            meetings.keep("objects", rank, target, list(object_list))

    @instead("batch_isend_irecv", distributed, c10d)
    def together(p2p_op_list):
        meetings.together[0] = 0
        try:
            return together.__wrapped__(p2p_op_list)
        finally:
            meetings.together[0] = None

    @instead("recv_object_list", distributed, c10d)
    def receive(object_list, src=None, group=None, device=None, group_src=None, **more):
        if not meetings.is_ours(group):
            return receive.__wrapped__(object_list, src, group, device, **_where_given(group_src=group_src), **more)
        rank = distributed.get_rank()
        source = _among(group, src, group_src)
        if meetings.are_there() and source is not None:
            given = meetings.sent(f"{source} to {rank}", rank, None, [source]).get(source)
        else:
            given = meetings.kept("objects", source, rank)
        if given is None:
            raise RuntimeError(
                f"vramlab rehearse: rank {rank} waits for objects of rank {source}, which is not there. Rehearse all ranks, with --rank all or "
                "torchrun; or have the script need none: a PipelineStage takes its shapes from input_args and output_args"
            )
        object_list[:] = given
        return source

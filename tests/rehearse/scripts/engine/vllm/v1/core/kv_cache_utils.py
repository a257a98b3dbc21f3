import logging

logger = logging.getLogger(__name__)


def get_kv_cache_configs(config):
    return []


def _check_enough_kv_cache_memory(available, needed, length, longest):
    if needed() > available:
        raise ValueError("To serve at least one request")


def get_max_concurrency_for_kv_cache_config(config, made):
    return made.num_blocks / 22

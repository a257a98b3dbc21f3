import logging

logger = logging.getLogger(__name__)


def get_kv_cache_configs(config):
    return []


def _check_enough_kv_cache_memory(available, needed, length, longest):
    pass


def get_max_concurrency_for_kv_cache_config(config, made):
    return made.num_blocks / 22

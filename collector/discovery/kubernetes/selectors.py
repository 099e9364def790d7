"""Label selectors for the two kinds of pods, from the configured keys and values."""

from indexer.config.pool import Labels


def engines(labels: Labels) -> str:
    """Engine pods whose role counts; with an empty role key, whatever their role."""
    selector = f"{labels.engine_key}={labels.engine_value}"
    if not labels.pd_role_key:
        return selector
    return f"{selector},{labels.pd_role_key} in ({','.join(labels.pd_role_value)})"


def masters(labels: Labels) -> str:
    """Mooncake master pods."""
    return f"{labels.kv_manager_key}={labels.kv_manager_value}"

"""{
"expandable-segments": {"group": "allocator", "use": "both", "short": "set by PYTORCH_ALLOC_CONF", "frees": {"fragmentation": 1}, "setting": "expandable_segments:True", "compiles": true, "line": "settings of the allocator"},
"max-split-size": {"group": "allocator", "use": "both", "short": "set by PYTORCH_ALLOC_CONF", "setting": "max_split_size_mb:128", "compiles": true, "line": "settings of the allocator"},
"round-up-power-of-2": {"group": "allocator", "use": "both", "short": "set by PYTORCH_ALLOC_CONF", "setting": "roundup_power2_divisions:8", "compiles": true, "line": "settings of the allocator"}
}"""

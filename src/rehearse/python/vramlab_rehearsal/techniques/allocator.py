"""{
"expandable-segments": {"group": "allocator", "use": "both", "short": "an environment variable", "frees": {"fragmentation": 1}, "setting": "expandable_segments:True", "compiles": true, "line": "settings of the allocator"},
"max-split-size": {"group": "allocator", "use": "both", "short": "an environment variable", "setting": "max_split_size_mb:128", "compiles": true, "line": "settings of the allocator"},
"round-up-power-of-2": {"group": "allocator", "use": "both", "short": "an environment variable", "setting": "roundup_power2_divisions:8", "compiles": true, "line": "settings of the allocator"}
}"""

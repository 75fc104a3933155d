#!/bin/sh
log="$HOOK_DATA/commands.log"
if [ -f "$log" ] && [ "$(wc -c < "$log")" -gt 1048576 ]; then mv "$log" "$log.1"; fi
cat >> "$log"

"""The completion scripts of bash (3.2 and later), zsh and fish, as text.

Names of devices come from other machines, so no shell may ever read them as code: they are compared and quoted, and
never handed to anything that expands words (`compgen -W` does).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from shlex import quote

from hinet_node.cli.completion_words import ARGUMENTS, CHOICES, TAKES_DEVICE, Words

BASH = """\
# hinet-node: completion for bash
_hinet_node_words() {{
    local word
    for word in "$@"; do
        [[ $word == "$cur"* ]] && COMPREPLY+=("$word")
    done
}}
_hinet_node_devices() {{
    local name quoted
    while IFS= read -r name; do
        quoted=$(printf '%q' "$name")
        [[ $name == "$cur"* || $quoted == "$cur"* ]] && COMPREPLY+=("$quoted")
    done < <(hinet-node ${{home[@]+"${{home[@]}}"}} completion device-names 2>/dev/null)
}}
_hinet_node() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" path="" word i
    local -a home
    home=()
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word="${{COMP_WORDS[i]}}"
        case "$word" in
            --home) home=(--home "${{COMP_WORDS[i+1]}}"); ((i++)) ;;
            -*) ;;
            *) case "$path" in
                   ""|{groups}) path="${{path:+$path }}$word" ;;
               esac ;;
        esac
    done
    case "$previous" in
{values}
    esac
    case "$path" in
{cases}
    esac
}}
complete -o default -F _hinet_node hinet-node
"""

ZSH = """\
#compdef hinet-node
# hinet-node: completion for zsh
_hinet_node_devices() {{
    local -a names
    names=(${{(f)"$(hinet-node $home completion device-names 2>/dev/null)"}})
    compadd -- $names
}}
_hinet_node() {{
    local path_="" word
    local -a home words_ options_
    integer i
    home=()
    for ((i = 2; i < CURRENT; i++)); do
        word="${{words[i]}}"
        case "$word" in
            --home) home=(--home "${{words[i+1]}}"); ((i++)) ;;
            -*) ;;
            *) case "$path_" in
                   ""|{groups}) path_="${{path_:+$path_ }}$word" ;;
               esac ;;
        esac
    done
    case "${{words[CURRENT-1]}}" in
{values}
    esac
    case "$path_" in
{cases}
    esac
}}
if [[ "${{funcstack[1]}}" == _hinet_node ]]; then
    _hinet_node "$@"
else
    compdef _hinet_node hinet-node
fi
"""

FISH = """\
# hinet-node: completion for fish
function __hinet_node_path
    set -l tokens (commandline -opc)
    set -l path
    set -l skip 0
    for token in $tokens[2..-1]
        if test $skip = 1
            set skip 0
            continue
        end
        switch $token
            case --home
                set skip 1
            case '-*'
            case '*'
                if test (count $path) = 0; or contains -- "$path" {groups}
                    set path $path $token
                end
        end
    end
    echo "$path"
end
function __hinet_node_at
    test (__hinet_node_path) = "$argv"
end
function __hinet_node_devices
    set -l tokens (commandline -opc)
    set -l home
    if set -l at (contains -i -- --home $tokens)
        set home --home $tokens[(math $at + 1)]
    end
    hinet-node $home completion device-names 2>/dev/null
end
complete -c hinet-node -e
complete -c hinet-node -n '__hinet_node_at ""' -f
{lines}
"""


def bash_script(words: Sequence[Words]) -> str:
    """The script for bash."""
    values = [f"        {name}) _hinet_node_words {' '.join(choices)}; return ;;" for name, choices in CHOICES.items()]
    values.append(f"        {'|'.join(_with_value(words))}) return ;;")
    cases = []
    for one in words:
        does = [f"[[ $cur == -* ]] && _hinet_node_words {_quoted(name for name, _, _ in one.options)}"]
        if one.subcommands:
            does.append(f"_hinet_node_words {_quoted(name for name, _ in one.subcommands)}")
        elif one.path in TAKES_DEVICE:
            does.append("[[ $cur == -* ]] || _hinet_node_devices")
        elif one.path in ARGUMENTS:
            does.append(f"_hinet_node_words {_quoted(ARGUMENTS[one.path])}")
        cases.append(f"        {quote(one.path)}) {'; '.join(does)} ;;")
    return BASH.format(groups=_alternatives(words), values="\n".join(values), cases="\n".join(cases))


def zsh_script(words: Sequence[Words]) -> str:
    """The script for zsh."""
    values = [f"        {option}) compadd -- {' '.join(choices)}; return ;;" for option, choices in CHOICES.items()]
    values.append(f"        {'|'.join(_with_value(words))}) _files; return ;;")
    cases = []
    for one in words:
        does = []
        if one.subcommands:
            does += [f"words_=({_described(one.subcommands)})", "_describe command words_"]
        does += [f"options_=({_described((name, line) for name, line, _ in one.options)})",
                 '[[ "${words[CURRENT]}" == -* ]] && _describe -o option options_']
        if one.path in TAKES_DEVICE:
            does.append("_hinet_node_devices")
        elif one.path in ARGUMENTS:
            does.append(f"compadd -- {' '.join(ARGUMENTS[one.path])}")
        elif not one.is_group:
            does.append('[[ "${words[CURRENT]}" != -* ]] && _files')
        body = "\n            ".join(does)
        cases.append(f"        {quote(one.path)})\n            {body} ;;")
    return ZSH.format(groups=_alternatives(words), values="\n".join(values), cases="\n".join(cases))


def fish_script(words: Sequence[Words]) -> str:
    """The script for fish."""
    lines = []
    for one in words:
        at = f"complete -c hinet-node -n {_fish(f'__hinet_node_at {_fish(one.path)}')}"
        lines += [f"{at} -f -a {name} -d {_fish(line)}" for name, line in one.subcommands]
        for name, line, takes_value in one.options:
            value = f" -x -a {_fish(' '.join(CHOICES[name]))}" if name in CHOICES else " -r" if takes_value else ""
            lines.append(f"{at} -l {name.removeprefix('--')}{value} -d {_fish(line)}")
        if one.path in TAKES_DEVICE:
            lines.append(f"{at} -f -a '(__hinet_node_devices)'")
        elif one.path in ARGUMENTS:
            lines.append(f"{at} -f -a {_fish(' '.join(ARGUMENTS[one.path]))}")
    groups = " ".join(quote(one.path) for one in words if one.is_group and one.path)
    return FISH.format(groups=groups, lines="\n".join(lines))


def _with_value(words: Sequence[Words]) -> list[str]:
    """Options that a value follows, whatever command they belong to; a name that is a flag elsewhere is left out."""
    rows = [(name, takes) for one in words for name, _, takes in one.options if name not in CHOICES]
    flags = {name for name, takes in rows if not takes}
    return list(dict.fromkeys(name for name, takes in rows if takes and name not in flags))


def _alternatives(words: Sequence[Words]) -> str:
    return "|".join(quote(one.path) for one in words if one.is_group and one.path)


def _quoted(words: Iterable[str]) -> str:
    return " ".join(quote(word) for word in words)


def _described(rows: Iterable[tuple[str, str]]) -> str:
    return " ".join(quote(f"{name}:{line.replace(':', ' -')}") for name, line in rows)


def _fish(text: str) -> str:
    """A word in single quotes, as fish reads them."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

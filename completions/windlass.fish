# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_windlass_global_optspecs
    string join \n j/json p/parsable o/output= H/no-header no-color timeout= socket= h/help V/version
end

function __fish_windlass_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_windlass_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_windlass_using_subcommand
    set -l cmd (__fish_windlass_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c windlass -n "__fish_windlass_needs_command" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_needs_command" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_needs_command" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_needs_command" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_needs_command" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_needs_command" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_needs_command" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_needs_command" -s V -l version -d 'Print version'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "zone" -d 'Tenants: who may make VNICs, on which bridges, in which network namespace'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "bridge" -d 'Learning switches'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "uplink" -d 'Interfaces of the host that are joined to a bridge'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "overlay" -d 'Layer-2 networks over many hosts'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "vnic" -d 'Virtual NICs'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "flow" -d 'Parts of a VNIC\'s traffic, with counters, a bandwidth and a priority of their own'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "vnd" -d 'Devices by which programs read and write the frames of a VNIC'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "fdb" -d 'Forwarding tables of bridges'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "worker" -d 'Threads that move frames'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "status" -d 'The whole on one screen: daemon, workers, members that are not up, drops, sockets, limits that are near'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "stat" -d 'Traffic of uplinks and VNICs'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "metrics" -d 'Write the counters as text for Prometheus, or serve them'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "apply" -d 'Make the configuration like a document; what it lacks is removed'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "export" -d 'Write the configuration as a document that apply reads'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "monitor" -d 'Write what changes, as it does'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "snoop" -d 'Capture frames of a VNIC, an uplink or a bridge'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "gen" -d 'Send frames into a bridge: at a rate, numbered and with times for sink; or those of a file'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "sink" -d 'Receive frames at a device, and count them: rates, what gen sent and did not come, order, latencies'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "extcap" -d 'Answer Wireshark, which lists links and captures through this command (extcap)'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "run" -d 'Run a program with accelerated sockets'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "sockets" -d 'List accelerated programs\' sockets: who carries them, ring or kernel, and why'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "memory" -d 'Show what memory consists of in programs that run on windlass\'s allocator'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "trace" -d 'Show what functions of a running program are called with, in the types of its debug data'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "inspect" -d 'Look into a process or a core file by the types in its debug data: variables, lists, memory, threads, stacks'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "stackdump" -d 'Show every word of the channels of a process, and of all with "all": locks, rings, sleepers'
complete -c windlass -n "__fish_windlass_needs_command" -f -a "__complete" -d 'What can stand at the cursor, for completions'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "create" -d 'Make a zone'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "delete" -d 'Remove a zone that has no VNICs'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "show" -d 'List zones'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "set" -d 'Change a zone'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "get" -d 'Show what it is and what can be set on it'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "show-props" -d 'List what can be set'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l owner -d 'User who acts in it: a name or a number' -r -f -a "(__fish_complete_users)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l group -d 'Group whose members see it: a name or a number [default of a new zone: the user\'s]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l netns -d 'Network namespace in which its TAPs may lie' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l bridge -d 'Bridge on which its owner may make VNICs; may be repeated. A set replaces the whole list' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l set -d 'Set a property; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l owner -d 'User who acts in it from now on: a name or a number. What its VNICs have counts for that user then. The group stays, unless one is named' -r -f -a "(__fish_complete_users)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l group -d 'Group whose members see it: a name or a number [default of a new zone: the user\'s]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l netns -d 'Network namespace in which its TAPs may lie' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l bridge -d 'Bridge on which its owner may make VNICs; may be repeated. A set replaces the whole list' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "create" -d 'Make a bridge'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "delete" -d 'Remove a bridge that has no members'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "show" -d 'List bridges, or their statistics'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "set" -d 'Set properties of a bridge'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "get" -d 'Show what it is and what can be set on it'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "show-props" -d 'List what can be set'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "mcheck" -d 'Ask neighbours of its spanning tree again whether they speak RSTP, after one that spoke STP was replaced'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "fdb" -d 'Its forwarding table'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and not __fish_seen_subcommand_from create delete show set get show-props mcheck fdb mdb" -f -a "mdb" -d 'Its multicast groups'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l set -d 'Set a property; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -l ports -d 'Their members: state, part in spanning tree, flags, traffic'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s s -l statistics -d 'Statistics; twice: drops by reason'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -l drops -d 'Drops by reason, as -s -s'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -l member -d 'Only behind this member' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -f -a "show" -d 'List entries'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -f -a "add" -d 'Put in an entry that does not age'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -f -a "delete" -d 'Remove the entry of an address'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb" -f -a "flush" -d 'Remove learned entries'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -f -a "show" -d 'List groups of bridges that snoop, and their members'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -f -a "add" -d 'Put a member into a group for good: it neither ages nor leaves. It counts while the bridge snoops'
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb" -f -a "delete" -d 'Take a member out of a group that it was put into'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "create" -d 'Join an interface of the host to a bridge'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "delete" -d 'Give an interface back to the host'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "show" -d 'List uplinks, or their statistics'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "set" -d 'Change an uplink'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "get" -d 'Show what it is and what can be set on it'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and not __fish_seen_subcommand_from create delete show set get show-props" -f -a "show-props" -d 'List what can be set'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l device -d 'Interface of the host' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l bridge -d 'Bridge that it joins' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l attach -d 'How frames are taken from it' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l vlan -d 'VLAN of untagged frames, 0 to drop them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l tagged -d 'VLANs with a tag: 10,20-30' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l mtu -d 'Largest packet, in bytes' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l set -d 'Set a property; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l share -d 'Take it although it has addresses or a master'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -l bridge -d 'Only those of this bridge' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s s -l statistics -d 'Statistics; twice: drops by reason'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -l drops -d 'Drops by reason, as -s -s'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l bridge -d 'Move it to this bridge' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l vlan -d 'VLAN of untagged frames, 0 to drop them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l tagged -d 'VLANs with a tag: 10,20-30' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l mtu -d 'Largest packet, in bytes' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l set -d 'Set a property; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "create" -d 'Make an overlay: a member of a bridge whose frames go to other hosts'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "delete" -d 'Remove an overlay, with the bridge that came with it'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "show" -d 'List overlays, their states, their targets or their statistics'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "set" -d 'Set properties of an overlay'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "get" -d 'Show what it is and what can be set on it'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "show-props" -d 'List what can be set'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "target" -d 'Addresses behind remote hosts'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "host" -d 'Hosts of an overlay\'s registry'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and not __fish_seen_subcommand_from create delete show set get show-props target host resync" -f -a "resync" -d 'Take a registry as it is, though it is younger than what is known: what it lacks is forgotten'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l bridge -d 'Bridge that it joins [default: a bridge of its own name, which comes and goes with it]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l encap -d 'How frames are put on the wire: vxlan' -r -f -a "vxlan\t''"
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l search -d 'How the host of an address is found: direct, files, learn, etcd or plugin' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l vni -d 'Network identifier, 0 to 16777215' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l vnis -d 'A network identifier for each VLAN of a filtering bridge' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l mtu -d 'Largest inner packet, in bytes' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l underlay-netns -d 'Network namespace of the underlay [default: the daemon\'s own]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l set -d 'Set properties; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s f -l faults -d 'Their states: online, or degraded and why'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s t -l targets -d 'Addresses behind their targets, and the targets that get what is flooded'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s s -l statistics -d 'Statistics; twice: drops by reason'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -l drops -d 'Drops by reason, as -s -s'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -f -a "show" -d 'List addresses behind targets, and the targets that get what is flooded'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -f -a "set" -d 'Say behind which host an address is; it holds before what the search says'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -f -a "delete" -d 'Forget what set has said'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from target" -f -a "flush" -d 'Forget what was learned, or answered by a plugin'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -f -a "show" -d 'List hosts'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from host" -f -a "forget" -d 'Take the records of a host that does not come back out of the registry'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -l accept -d 'Addresses that the registry lacks may go'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from resync" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "create" -d 'Make a VNIC'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "delete" -d 'Remove a VNIC and what it is attached to'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "show" -d 'List VNICs, or their statistics'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "set" -d 'Change a VNIC'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "get" -d 'Show what it is and what can be set on it'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "show-props" -d 'List what can be set'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "rules" -d 'List the rules that packets of a VNIC have to pass, with what those with "count" have counted'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "qemu-args" -d 'Write the QEMU arguments that attach a machine to a VNIC'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and not __fish_seen_subcommand_from create delete show set get show-props rules qemu-args libvirt-xml" -f -a "libvirt-xml" -d 'Write the libvirt elements that attach a machine to a VNIC'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l bridge -d 'Bridge that it is a member of' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l over -d 'Overlay whose bridge it is a member of' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l attach -d 'Who is on the other side: tap, memif, vhost-user or none; a socket\'s owner=USER:GROUP by name or number' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l mac -d 'Its address [default: a random local one, drawn once and kept]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l zone -d 'Zone that it belongs to' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l vlan -d 'VLAN of untagged frames, 0 to drop them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l tagged -d 'VLANs with a tag: 10,20-30' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l mtu -d 'Largest packet, in bytes' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l set -d 'Set a property; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l bridge -d 'Only those of this bridge' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l zone -d 'Only those of this zone' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s s -l statistics -d 'Statistics; twice: drops by reason'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l drops -d 'Drops by reason, as -s -s'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l bridge -d 'Move it to this bridge' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l vlan -d 'VLAN of untagged frames, 0 to drop them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l tagged -d 'VLANs with a tag: 10,20-30' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l mtu -d 'Largest packet, in bytes' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l set -d 'Set a property; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l attach -d 'Attach it to someone else' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l mac -d 'Give it this address' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -l memory -d 'Memory of the machine' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -l accel -d 'What runs the machine, as QEMU\'s -accel: kvm, or tcg where the host has no KVM. Without it none is named' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "add" -d 'Make a flow of a VNIC'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "remove" -d 'Remove a flow'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "show" -d 'List flows with what they have counted'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "set" -d 'Set properties of a flow'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "reset" -d 'Forget what was set of a flow\'s properties'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "get" -d 'Show what it is and what can be set on it'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and not __fish_seen_subcommand_from add remove show set reset get show-props" -f -a "show-props" -d 'List what can be set'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l vnic -d 'VNIC whose traffic it is a part of. All flows of a VNIC have the same attributes' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l attr -d 'What is in it: local_ip=PREFIX, remote_ip=PREFIX, transport=PROTOCOL, transport=PROTOCOL,local_port=PORT, transport=PROTOCOL,remote_port=PORT, dsfield=VALUE or dsfield=VALUE:MASK. Local is the VNIC\'s side. The most specific prefix wins' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l prop -l set -d 'Set properties; may be repeated. "show-props" lists them' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -l vnic -d 'Only those of this VNIC' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show-props" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "create" -d 'Make a device over a VNIC that nobody is attached to'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "list" -d 'List devices, those too that were destroyed while a program has them open'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "get" -d 'Show properties of a device'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "set" -d 'Set properties of a device, one after the other: if one is refused, those before it stay set'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "destroy" -d 'Remove a device. A program that has it open keeps it, without a name'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "rename" -d 'Give a device another name. A program that has it open does not notice'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and not __fish_seen_subcommand_from create list get set destroy rename stat" -f -a "stat" -d 'Show the traffic of devices. rx is what the program receives'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s l -l link -d 'VNIC that it is over [default: the one of the same name]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l set -d 'Set a property; may be repeated' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -s z -l zone -d 'Only those of this zone' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -l if-exists -d 'Succeed if there is none of this name'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -s z -l zone -d 'Only devices of this zone' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -f -a "show" -d 'List entries'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -f -a "add" -d 'Put in an entry that does not age'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -f -a "delete" -d 'Remove the entry of an address'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and not __fish_seen_subcommand_from show add delete flush" -f -a "flush" -d 'Remove learned entries'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l member -d 'Only those of this member' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l vlan -d 'Only those of this VLAN' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l mac -d 'Only this address' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l limit -d 'So many entries of each bridge at most [default: 10000]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l vlan -d 'VLAN [default: the member\'s untagged one]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l sticky -d 'Sticky instead of static'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l may-exist -d 'Succeed if it exists already and is as asked'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -l vlan -d 'Only in this VLAN' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -l if-exists -d 'Succeed if there is no such entry'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l member -d 'Only those of this member' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l vlan -d 'Only those of this VLAN' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l mac -d 'Only this address' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -f -a "show" -d 'List workers and what they have done'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and not __fish_seen_subcommand_from show move" -f -a "move" -d 'Have another worker serve rings of an uplink or a VNIC, while frames pass: none is lost or overtaken'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -l table -d 'MEMBER is a bridge: its forwarding table is moved'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand status" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand status" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand status" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand status" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand status" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand status" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand status" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand status" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand stat" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand stat" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand stat" -l drops -d 'Drops by reason'
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand stat" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand stat" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -l listen -d 'Serve them at http://ADDRESS/metrics until a signal ends the command. Any user of this host can read what is served on a loopback address without a token' -r
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -l token-file -d 'Serve only to who sends the text in this file as a bearer token; needed where the address is not a loopback one' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand metrics" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand apply" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand apply" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand apply" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand apply" -l dry-run -d 'Change nothing, and write what would be'
complete -c windlass -n "__fish_windlass_using_subcommand apply" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand apply" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand apply" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand apply" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand apply" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand export" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand export" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand export" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand export" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand export" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand export" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand export" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand export" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -s c -l count -d 'End after so many events' -r
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand monitor" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s d -l link -d 'The VNIC, uplink or bridge' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s z -l zone -d 'Only if the VNIC is in this zone; "global" is none' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s w -l write -d 'Write a pcapng file; "-" is the standard output' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s c -l count -d 'End after so many frames' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s s -l length -d 'Capture so many bytes of each frame, 0 for all [default: all]' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s C -l file-size -d 'Begin another file after so many million bytes' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s W -l file-count -d 'Write so many files in turn, the first again after the last' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s Q -l direction -d 'Which frames of a VNIC: those that its guest or program receives (in), sends (out), or both (inout); of an uplink the host\'s' -r -f -a "in\t'Received'
out\t'Sent'
inout\t'All'"
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s B -l buffer -d 'Room for frames that are not read yet, in KiB for each worker' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -l drops -d 'Capture frames that died, too, with the reason'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s v -l verbose -d 'Write the link header and fields of the IP header, too'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s x -l hex -d 'Write the bytes of each frame, too'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s c -l count -d 'End after so many frames' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l time -d 'End after so many seconds' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s i -l interval -d 'Report each so many seconds' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l rate -d 'Frames a second, with k, M or G; max: as many as the bridge takes [default: max; of a file, at its times]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l bps -d 'Bits of frames a second, without preamble and check sequence, with k, M or G' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l size -d 'Bytes of a frame without its check sequence; a range MIN-MAX; or imix: 7 of 60, 4 of 590 and 1 of 1514' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l dst-mac -d 'Where they go: an address, or the VNIC that has it' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l src-mac -d 'Source address [default: the VNIC\'s own]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l src-ip -d 'IPv4 or IPv6 source [default: 198.18.0.1 or 2001:2::1]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l dst-ip -d 'IPv4 or IPv6 destination [default: 198.19.0.1 or 2001:2::2]' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l src-port -d 'UDP source port of the first flow; the others have those that follow' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l dst-port -d 'UDP destination port' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l flows -d 'Flows that take turns' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l replay -d 'Send the frames of a pcap or pcapng file instead, as they are' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand gen" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s z -l zone -d 'Zone of the device [default: the only zone that you own; for operators the global one]' -r
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s c -l count -d 'End after so many frames' -r
complete -c windlass -n "__fish_windlass_using_subcommand sink" -l time -d 'End after so many seconds' -r
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s i -l interval -d 'Report each so many seconds' -r
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand sink" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand sink" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand sink" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand sink" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l extcap-interface -d 'The link that is asked about' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l extcap-capture-filter -d 'The filter' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l fifo -d 'The named pipe to capture into' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l extcap-version -d 'The version of who asks' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l length -d 'As of snoop' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l direction -d 'As of snoop' -r -f -a "in\t'Received'
out\t'Sent'
inout\t'All'"
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l buffer -d 'As of snoop' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l extcap-interfaces -d 'List links'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l extcap-dlts -d 'List its link types'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l extcap-config -d 'List its options'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l capture -d 'Capture'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l drops -d 'As of snoop'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand extcap" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand run" -l spin -d 'How long a waiting call polls for data before it sleeps, in microseconds. 50 suits two busy programs on cores of their own, 0 a host with more busy programs than cores [default: 30, in threads that wait again within 300 us, with exponential backoff while polls find nothing]' -r
complete -c windlass -n "__fish_windlass_using_subcommand run" -l library -d 'The preload library [default: beside windlass, in ../lib/windlass, or in /usr/lib/windlass]' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand run" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand run" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand run" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand run" -l share -d 'Also join connections with programs of other users that were run with --share; needs root\'s broker'
complete -c windlass -n "__fish_windlass_using_subcommand run" -l unix -d 'Accelerate Unix sockets even if the environment says WINDLASS_UNIX=0'
complete -c windlass -n "__fish_windlass_using_subcommand run" -l no-unix -d 'Keep Unix sockets on the kernel'
complete -c windlass -n "__fish_windlass_using_subcommand run" -l alloc -d 'Replace malloc and C++\'s new by windlass\'s allocator (libwindlass_alloc.so), in child processes too. It lies where the preload library does. Options and debugging words are in WINDLASS_MEMORY: windlass-alloc(7)'
complete -c windlass -n "__fish_windlass_using_subcommand run" -s v -l verbose -d 'Say on stderr which library and which broker are used. At its end each process says there what its connections did: how many joined, the bytes by ring and by kernel, and why others stayed on the kernel. A process that a signal kills says nothing'
complete -c windlass -n "__fish_windlass_using_subcommand run" -l check -d 'Only say whether the program can be accelerated, and why not; do not run it. Scripts are followed to their interpreter'
complete -c windlass -n "__fish_windlass_using_subcommand run" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand run" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand run" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand run" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand sockets" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -l regions -d 'List the regions of memory through which the daemon forwards, of these members and bridges; all if there is none: which pages were asked for, and which the kernel gave' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -l threads -d 'Show its threads\' caches alone'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -l caches -d 'Show its caches of objects alone, malloc\'s classes first'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -a "growth" -d 'Show which stacks\' allocations live, estimated from samples'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -a "leaks" -d 'Find objects that nothing points to'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and not __fish_seen_subcommand_from growth leaks whatis" -a "whatis" -d 'Say what an address is'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -l since -d 'Count what was allocated in this time alone, and lives still: a number with s, m, h or d' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -l pprof -d 'Write the profile to this file, too, for pprof' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s i -l interval -d 'Show again after so many seconds: first totals, then rates a second' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s c -l count -d 'Show so many times' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from growth" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -l core -d 'Look into this core file instead' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -l scan -d 'Do it: the process stands still meanwhile, a second for each gigabyte or so'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from leaks" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand memory; and __fish_seen_subcommand_from whatis" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s p -l pid -d 'The process that is traced: all of its threads, and none of its children' -r -f
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s c -l command -d 'A program with its arguments, which is started and traced from before its first instruction on. Words with spaces stand between quotes. It goes on when tracing ends before it does' -r -f -a "(__fish_complete_command)"
complete -c windlass -n "__fish_windlass_using_subcommand trace" -l seconds -d 'End after so many seconds; without this, at a signal or with the process' -r
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand trace" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand trace" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand trace" -l all -d 'All processes: those that have the file of the probe mapped now, and those that map it later'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s l -l list -d 'List the places that the probes are put on, the arguments with where they lie there, and what a hit costs'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -l parsable -d 'Of the same name as the option of every command, whose letter is the process here'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand trace" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand stackdump" -s h -l help -d 'Print help'
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -s o -l output -d 'Fields to write, of a table or with -j, or "all"; "help" lists them' -r
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -l timeout -d 'Wait so long for each answer, 0 for ever [default: 30]' -r
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -l socket -d 'The daemon\'s control socket' -r -F
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -s j -l json -d 'Write JSON: an array of objects, of gen and sink one a line, of monitor an object a line; errors as {code, message, details}'
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -s p -l parsable -d 'Write fields between colons, for scripts; needs -o'
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -s H -l no-header -d 'Write no titles'
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -l no-color -d 'Write no colours; so does NO_COLOR'
complete -c windlass -n "__fish_windlass_using_subcommand __complete" -s h -l help -d 'Print help'
# Live names, properties and attachments.
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from show" -f -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -f -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -f -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -f -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from show" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from set" -f -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from show" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from add" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from add" -f -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from flush" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb; and __fish_seen_subcommand_from show" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb; and __fish_seen_subcommand_from add" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb; and __fish_seen_subcommand_from add" -f -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mdb; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete uplink (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -f -a "(windlass __complete uplink (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -f -a "(windlass __complete uplink (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -f -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -f -a "(windlass __complete uplink (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -f -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from rules" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from qemu-args" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from libvirt-xml" -f -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from remove" -f -a "(windlass __complete flow (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -f -a "(windlass __complete flow (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -f -a "(windlass __complete flow (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from set" -f -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -f -a "(windlass __complete flow (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from reset" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -f -a "(windlass __complete flow (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -f -a "(windlass __complete property (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -f -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from add" -f -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from delete" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -f -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand worker; and __fish_seen_subcommand_from move" -f -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand stat" -f -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand gen" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand sink" -f -a "(windlass __complete vnd (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -f -a "(windlass __complete program (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand inspect" -f -a "(windlass __complete inspection (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from create" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand zone; and __fish_seen_subcommand_from set" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from create" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from mcheck" -l member -x -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from show" -l member -x -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand bridge; and __fish_seen_subcommand_from fdb; and __fish_seen_subcommand_from flush" -l member -x -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l attach -x -a "(windlass __complete attach (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from create" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from show" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand uplink; and __fish_seen_subcommand_from set" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand overlay; and __fish_seen_subcommand_from create" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l attach -x -a "(windlass __complete attach (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from create" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from show" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l bridge -x -a "(windlass __complete bridge (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnic; and __fish_seen_subcommand_from set" -l attach -x -a "(windlass __complete attach (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l vnic -x -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l attr -x -a "(windlass __complete attr (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from add" -l prop -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand flow; and __fish_seen_subcommand_from show" -l vnic -x -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l link -x -a "(windlass __complete vnic (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from create" -l set -x -a "(windlass __complete setting (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from list" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from get" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from set" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from destroy" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from rename" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand vnd; and __fish_seen_subcommand_from stat" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from show" -l member -x -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand fdb; and __fish_seen_subcommand_from flush" -l member -x -a "(windlass __complete member (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand snoop" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand gen" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"
complete -c windlass -n "__fish_windlass_using_subcommand sink" -l zone -x -a "(windlass __complete zone (commandline -ct) -- (commandline -opc) 2>/dev/null)"

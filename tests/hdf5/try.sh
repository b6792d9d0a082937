#!/usr/bin/env bash
# Builds HDF5, the driver and the test programs, and runs the tests of the driver.
#   tests/hdf5/try.sh SCRATCH [plain|sanitized|own]...
# SCRATCH: a folder for all that is made; HDF5 stays there for the next time (about 700 MB). Without a word: plain and sanitized. `own` runs HDF5's own
# tests on the driver, which takes half an hour.
#   HDF5_SOURCES   HDF5 1.14's sources; otherwise apt-get fetches those of Debian 13 (the package hdf5, from whichever release this system is)
#   HDF5           HDF5 as it is installed, with the tools; then nothing is built, and `own` needs HDF5_SOURCES and HDF5_BUILD
#   BIVOUAC_LIBRARY  libbivouac_capi.so, or libbivouac.so; target/release is looked at otherwise
#   TESTS          names of tests, instead of all
#   FAULT          a line of sed that plants a fault in the driver, to see that a test notices
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
tests=$root/tests/hdf5
[ $# -ge 1 ] || { sed -n '3,11s/^# \?//p' "${BASH_SOURCE[0]}" >&2; exit 2; }
mkdir -p "$1"
scratch=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- plain sanitized
. "$root/launch/env.sh"

fetch_hdf5() {
    [ -z "${HDF5_SOURCES:-}" ] || return 0
    HDF5_SOURCES=$scratch/sources
    [ ! -f "$HDF5_SOURCES/CMakeLists.txt" ] || return 0
    local apt=$scratch/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$HDF5_SOURCES"
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" > "$apt/sources.list"
    local options=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/nonexistent -o Dir::State::lists="$apt/lists"
        -o Dir::Cache="$apt/cache")
    apt-get "${options[@]}" update
    (cd "$apt" && apt-get "${options[@]}" source --download-only hdf5)
    tar xf "$apt"/hdf5_*.orig.tar.gz -C "$HDF5_SOURCES" --strip-components=1
}

build_hdf5() {
    [ -z "${HDF5:-}" ] || return 0
    fetch_hdf5
    HDF5=$scratch/hdf5 HDF5_BUILD=$scratch/build
    [ ! -x "$HDF5/bin/h5repack" ] || return 0
    cmake -S "$HDF5_SOURCES" -B "$HDF5_BUILD" -DCMAKE_INSTALL_PREFIX="$HDF5" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS="-O1 -w" \
        -DBUILD_SHARED_LIBS=ON -DBUILD_STATIC_LIBS=OFF -DHDF5_BUILD_HL_LIB=OFF -DHDF5_BUILD_CPP_LIB=OFF -DHDF5_BUILD_FORTRAN=OFF \
        -DHDF5_BUILD_EXAMPLES=OFF -DHDF5_ENABLE_Z_LIB_SUPPORT=ON -DHDF5_ENABLE_SZIP_SUPPORT=OFF -DHDF5_TEST_API=OFF > "$scratch/hdf5.log"
    nice -n 19 make -C "$HDF5_BUILD" -j "${JOBS:-1}" >> "$scratch/hdf5.log" 2>&1
    nice -n 19 make -C "$HDF5_BUILD" install >> "$scratch/hdf5.log" 2>&1
}

# Builds the driver and the test programs in $plugins and $programs.
build_driver() { # FLAGS...
    mkdir -p "$plugins" "$programs"
    local library=${BIVOUAC_LIBRARY:-$root/target/release/libbivouac_capi.so}
    [ -f "$library" ] || { echo "$library is not there: cargo build --release -p bivouac-capi, or set BIVOUAC_LIBRARY" >&2; exit 2; }
    ln -sf "$library" "$plugins/libbivouac.so"
    ln -sf "$library" "$plugins/$(objdump -p "$library" | awk '$1 == "SONAME" { print $2 }')"
    rm -rf "$scratch/driver"
    mkdir "$scratch/driver"
    cp "$root/src/hdf5/Makefile" "$scratch/driver/"
    sed "${FAULT:-}" "$root/src/hdf5/bivouac_hdf5.c" > "$scratch/driver/bivouac_hdf5.c"
    [ -z "${FAULT:-}" ] || ! cmp -s "$scratch/driver/bivouac_hdf5.c" "$root/src/hdf5/bivouac_hdf5.c" || { echo "FAULT changes nothing" >&2; exit 2; }
    make -s -C "$scratch/driver" OUT="$plugins" HDF5="$HDF5" BIVOUAC_CFLAGS="-I$root/include" BIVOUAC_LIBS="-L$plugins -lbivouac" \
        CFLAGS="-O1 -g $([ -n "${FAULT:-}" ] || echo -Werror) $*"
    local flags=(-std=gnu11 -Wall -Wextra -Wpedantic -Werror -O1 -g "$@" -isystem "$HDF5/include")
    gcc "${flags[@]}" "$tests/serial.c" -L"$HDF5/lib" -lhdf5 -o "$programs/serial"
    mpicc "${flags[@]}" "$tests/ranks.c" -L"$HDF5/lib" -lhdf5 -o "$programs/ranks"
    gcc -Wall -Wextra -O1 -shared -fPIC -isystem "$HDF5/include" "$tests/own.c" -o "$plugins/own.so" -L"$HDF5/lib" -lhdf5 -ldl
}

failures=0
# Runs one test in a folder of its own, with stores of its own.
try() { # NAME
    local folder=$scratch/work/$1 memory status=0
    rm -rf "$folder"
    mkdir -p "$folder"
    memory=$(mktemp -d /dev/shm/bivouac-hdf5-XXXXXX)
    set +e # with `||` behind it, the subshell would go on after a failure
    (
        set -e
        cd "$folder"
        export BIVOUAC_MEMORY_DIRECTORY=$memory BIVOUAC_LOCAL_DIRECTORY=$folder/local BIVOUAC_GLOBAL_DIRECTORY=$folder/global BIVOUAC_MEMORY_BUDGET="256 MiB"
        export BIVOUAC_LOG=warn HDF5_DRIVER=bivouac HDF5_PLUGIN_PATH=$plugins LD_LIBRARY_PATH="$HDF5/lib:$plugins${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        "test_$1"
    ) > "$folder.log" 2>&1
    status=$?
    set -e
    rm -rf "$memory"
    if [ $status -eq 0 ]; then
        echo "ok   $1"
        rm -rf "$folder"
    else
        failures=$((failures + 1))
        echo "FAIL $1 (status $status); $folder.log ends:"
        tail -n 5 "$folder.log" | cut -c 1-300
    fi
}

on_disk() { (unset HDF5_DRIVER && "$@"); } # with HDF5's own driver
with() { (export HDF5_DRIVER_CONFIG="$1" && "${@:2}"); }
serial() { nice -n 19 timeout 120 "$programs/serial" "$@"; }
ranks() { nice -n 19 timeout 120 "${mpirun_command[@]}" -n "${count:-4}" "$programs/ranks" "$@"; }
alone() { nice -n 19 timeout 120 "$programs/ranks" "$@"; }
tool() { nice -n 19 timeout 120 env "${preload[@]}" "$HDF5/bin/$1" "${@:2}"; }
# A command that succeeds, or fails in order, and says what is expected.
prints() { expect success "$@"; }
fails() { expect failure "$@"; }
says() { expect either "$@"; }
expect() { # OUTCOME PATTERN COMMAND...
    local status=0 output outcome=success
    output=$("${@:3}" 2>&1) || status=$?
    echo "$output"
    [ $status -eq 0 ] || outcome=failure
    [ $status -ne 124 ] || outcome='no end' # of timeout
    [ "$1" = "$outcome" ] || { [ "$1" = either ] && [ $status -ne 124 ]; } || { echo "status $status of ${*:3}"; return 1; }
    grep -qE -- "$2" <<< "$output" || { echo "expected: $2"; return 1; }
}

# A program without MPI: what it reads is what it would read from a file on disk, and so is the file itself, byte for byte.
test_serial() {
    serial create a.h5
    serial extend a.h5
    serial dump a.h5 kept
    [ ! -e a.h5 ]
    on_disk serial create a.h5
    on_disk serial extend a.h5
    on_disk serial dump a.h5 disk
    cmp kept disk
    cmp kept.image disk.image
}

# Creating, opening, truncating, deleting: as with files on disk.
test_rules() {
    on_disk serial rules disk.h5
    serial rules kept.h5
    prints '^8$' serial shown kept.h5
    prints '^-1$' serial shown kept.h5.other
    [ ! -e kept.h5 ]
    serial forks forks.h5 12
    prints '^12$' serial shown forks.h5
}

# Ranks with a file each, killed while they write: all find the last step that all have closed.
test_ranks() {
    ranks write out.%d.h5 1 3
    prints '^step 3$' ranks read out.%d.h5
    fails 'signal 9' ranks write out.%d.h5 4 6 6
    prints '^step 5$' ranks read out.%d.h5
    local round children last=5 now
    for round in 1 2 3; do
        nice -n 19 "${mpirun_command[@]}" -n 4 "$programs/ranks" write out.%d.h5 $((last + 1)) $((last + 400)) &
        sleep "1.$((round * 3))"
        children=$(ps -o pid= --ppid "$!")
        kill -9 $children
        wait "$!" || true
        now=$(ranks read out.%d.h5 2> /dev/null)
        echo "killed after $last, then $now"
        now=${now#step }
        [ "$now" -gt "$last" ]
        last=$now
    done
    prints "step $last" ranks read out.%d.h5
    ranks append out.%d.h5
    fails 'not so: least == most' ranks read out.%d.h5 # rank 0 has changed nothing
}

# Tools without mpirun, on the file of a program without MPI and on one of the files of several ranks.
test_tools() {
    local name
    serial create a.h5
    serial extend a.h5
    mkdir disk
    (cd disk && on_disk serial create a.h5 && on_disk serial extend a.h5)
    tool h5dump a.h5 > kept.txt
    (cd disk && on_disk tool h5dump a.h5 > ../disk.txt)
    cmp kept.txt disk.txt
    [ "$(wc -l < kept.txt)" -gt 5000 ]
    tool h5ls -r -v a.h5 | grep -v '^Opened' > kept.txt
    (cd disk && on_disk tool h5ls -r -v a.h5 | grep -v '^Opened' > ../disk.txt)
    cmp kept.txt disk.txt
    on_disk tool h5repack --src-vfd-name=bivouac --dst-vfd-name=sec2 a.h5 plain.h5
    on_disk tool h5dump plain.h5 | sed 1d > disk.txt
    tool h5dump a.h5 | sed 1d > kept.txt
    cmp kept.txt disk.txt
    with 'files=a.h5' tool h5copy -i a.h5 -o copy.h5 -s /numbers -d /numbers
    on_disk tool h5diff copy.h5 disk/a.h5 /numbers
    tool h5repack -f GZIP=1 a.h5 again.h5 # from the driver to the driver
    [ ! -e again.h5 ]
    tool h5diff a.h5 again.h5 /fields/temperature
    fails 'unable to open file' tool h5dump nothing.h5
    [ "$(nice -n 19 timeout 120 "${mpirun_command[@]}" -n 2 env "${preload[@]}" "$HDF5/bin/h5dump" -d /short -s 130,0 -c 1,1 a.h5 | grep -c '(130,0): 130000')" = 2 ]

    ranks write out.%d.h5 1 2
    for name in out.0000.h5 out.0003.h5; do
        prints '\(0\): 2$' tool h5dump -a step "$name"
        tool h5ls -r "$name"
    done
    on_disk tool h5repack --src-vfd-name=bivouac --dst-vfd-name=sec2 out.0002.h5 plain2.h5
    prints '34200' on_disk tool h5ls plain2.h5
    fails 'unable to open' tool h5dump out.0004.h5
    says 'no such file' alone append out.%d.h5
    count=2 prints '^step 2$' ranks read out.%d.h5
    count=2 says 'which only 4 ranks can change together' ranks append out.%d.h5
    prints '^step 2$' ranks read out.%d.h5
}

# Ranks that do not do the same hear of it, with both files, and go on.
test_disagreement() {
    ranks write out.%d.h5 1 1
    prints 'rank 0 opens for writing .*out.0000.h5, and rank 1 opens for writing .*out.0001.h5.other' ranks differ out.%d.h5
    prints '^step 50$' ranks read out.%d.h5
    prints 'rank 0 loads .*out.0000.h5, and rank 1 creates .if it does not exist. .*out.0001.h5' ranks kinds out.%d.h5
    prints '^step 50$' ranks read out.%d.h5
    prints 'waited 3 s .patience=3. for the other ranks' with patience=3 ranks missing out.%d.h5
    prints '^step 50$' ranks read out.%d.h5
}

# Which number in a path is the rank.
test_names() {
    mkdir same part0000 part0001 part0002 part0003
    ranks write from1-%e.h5 1 2
    prints '^step 2$' ranks read from1-%e.h5
    ranks write part%d/ckpt.h5 1 2
    prints '^step 2$' ranks read part%d/ckpt.h5
    prints '\(0\): 2$' tool h5dump -a step part0002/ckpt.h5
    ranks write same/out1.h5 3 3 # one name for all, which has the number of a rank
    prints '^step 3$' ranks read same/out1.h5
    ranks write part%d/step1.h5 4 4 # 1 is the number of a rank, but not for all
    prints '^step 4$' ranks read part%d/step1.h5
    ranks write part%d/both%d.h5 5 5
    prints '^step 5$' ranks read part%d/both%d.h5
    prints '\(0\): 5$' tool h5dump -a step part0002/both0002.h5
    with rank=-2 ranks write r%d-step0001.h5 6 6
    with rank=-2 prints '^step 6$' ranks read r%d-step0001.h5
    fails 'ranks disagree' with rank=-1 ranks write r%d-step0001.h5 7 7
    prints '^step 6$' ranks read r%d-step0001.h5
    fails 'ranks disagree' with rank=none ranks write out.%d.h5 1 1
}

# Files that are open at MPI_Finalize are saved; what comes later is not, and is reported.
test_finalize() {
    ranks open out.%d.h5
    prints '^step 77$' ranks read out.%d.h5
    ranks left left.%d.h5 > left.log 2>&1
    [ "$(grep -c 'is not saved' left.log)" = 0 ]
    prints '^step 78$' ranks read left.%d.h5
    prints 'close failed' ranks late late.%d.h5
    prints 'is not saved' ranks late late.%d.h5
    prints '^step 77$' ranks read late.%d.h5
    count=1 prints 'MPI is not initialised yet' ranks early early.h5
    count=1 prints '^created$' with 'files=out*' ranks early early.h5
    [ -e early.h5 ]
    prints '^created$' with 'mpi=init' serial refused early2.h5
    fails . with 'mpi=refuse' serial step early2.h5 1
}

# Each process for itself.
test_self() {
    with scope=self ranks self out.%d.h5
    prints '\(0\): 1$' tool h5dump -a step out.0000.h5
    prints '\(0\): 4$' with group=self-3 tool h5dump -a step out.0003.h5
    with scope=self ranks first single.h5
    prints '\(0\): 9$' tool h5dump -a step single.h5
}

# Bytes of the newest version change on all tiers: an older version comes back, or an error, and never other contents.
test_damage() {
    alone write a.h5 1 3
    prints '^step 3$' alone read a.h5
    cp -r local global .. # beside, to come back to
    local at file length found lost=0
    for at in $(seq 0 2 98) all; do
        rm -rf local global
        mv ../local ../global . && cp -r local global ..
        for file in $(find local global -name '*.bv[cs]' -path '*-v0000000003-*'); do
            length=$(stat -c %s "$file")
            if [ "$at" = all ]; then perl -e 'open F, "+<", $ARGV[0]; binmode F; for ($p = 0; $p < $ARGV[1]; $p += 511) { seek F, $p, 0; read F, $b, 1; seek F, $p, 0; print F chr(ord($b) ^ 32) }' "$file" "$length"
            else perl -e 'open F, "+<", $ARGV[0]; binmode F; $p = int($ARGV[1] * $ARGV[2] / 100); seek F, $p, 0; read F, $b, 1; seek F, $p, 0; print F chr(ord($b) ^ 32)' "$file" "$length" "$at"; fi
        done
        found=$(BIVOUAC_LOG=off alone read a.h5)
        echo "at $at %: $found"
        case $found in
        'step 3') [ "$at" != all ] ;;
        'step 2') lost=$((lost + 1)) ;;
        *) return 1 ;;
        esac
    done
    rm -rf ../local ../global
    [ $lost -gt 20 ] # most of the file is data
    # All versions: an error, with the reason.
    for file in $(find local global -name '*.bv[cs]'); do
        perl -e 'open F, "+<", $ARGV[0]; binmode F; seek F, 4096, 0; print F "x" x (-s F) if 1' "$file"
    done
    fails 'cannot be restored|no version' tool h5dump --enable-error-stack=2 a.h5
}

# No space: H5Fclose fails with the reason, and program and earlier version live on.
test_full() {
    unshare -m true 2> /dev/null || { echo "no private mounts here: left out"; return 0; }
    mkdir full
    export programs
    unshare -m bash -euc '
        mount -t tmpfs -o size=48m tmpfs full
        mkdir full/memory full/local full/global
        export BIVOUAC_MEMORY_DIRECTORY=$PWD/full/memory BIVOUAC_LOCAL_DIRECTORY=$PWD/full/local BIVOUAC_GLOBAL_DIRECTORY=$PWD/full/global
        export BIVOUAC_LOCAL_ALLOW_TMPFS=true BIVOUAC_TIMEOUTS_ROOM=1s
        serial=$programs/serial
        $serial big a.h5 4
        $serial read a.h5 > before
        $serial big a.h5 200 > output 2>&1
        cat output
        grep -q "close failed" output
        grep -q "the program goes on" output
        grep -q "a.h5: version 2 was not saved: .*No space left" output
        $serial read a.h5 > after
        cmp before after
        $serial big a.h5 3
        $serial read a.h5 | grep "393216 values"'
}

# Mistakes in the configuration, and names.
test_configuration() {
    local bad name long
    for bad in scope scope=some file=x files= wait=1 wait=disk rank=0 rank=17 rank=-99999999999999999999 rank=x files=out/*.h5 patience=0 patience=x mpi=x flush=maybe job= "files=$(printf 'x%.0s' {1..1100})"; do
        prints '^refused$' with "$bad" serial refused a.h5
        prints "the driver's configuration.*${bad%%=*}" with "$bad" serial refused a.h5
    done
    [ ! -e a.h5 ]
    prints '^created$' with ' ; scope = self;; files = *.h5 , *.nc;flush=yes ' serial refused a.h5
    with 'files=*.h5' serial step plain.dat 1
    [ -e plain.dat ]
    with "files=$PWD/k*/*" serial step plain.h5 1
    [ -e plain.h5 ]
    mkdir kept
    with "files=$PWD/k*/*" serial step kept/a.dat 2
    [ ! -e kept/a.dat ]
    long=$(printf 'n%.0s' {1..250})
    mkdir "$long"
    serial step "$long/$long" 5
    prints '^5$' serial shown "$long/$long"
    prints '^5$' serial shown "./$long/../$long//$long"
    name='a b;c=d"\é %.h5'
    serial step "$name" 6
    prints '^6$' serial shown "$name"
    prints '^-1$' serial shown "a b_c=d__é %.h5"
    name=$(for i in {1..21}; do printf '%s/' "${long:0:200}"; done)
    prints 'the path has .* bytes; Bivouac keeps files whose paths have up to' serial refused "${name}x"
    # Another job, another file; a mistake of Bivouac's own configuration.
    prints '^-1$' with job=other serial shown "./$long/$long"
    BIVOUAC_GLOBAL_KEEP=3 prints 'Bivouac cannot keep this file: .*BIVOUAC_GLOBAL_KEEP' serial refused a.h5
    printf '[job]\nname = "mine"\n' > bivouac.toml
    BIVOUAC_CONFIG=$PWD/bivouac.toml serial step b.h5 7
    prints '^-1$' serial shown b.h5
    prints '^7$' with job=mine serial shown b.h5
    printf '[local]\nkeep_last = 3\n' > bivouac.toml
    BIVOUAC_CONFIG=$PWD/bivouac.toml serial step c.h5 8
    prints '^8$' serial shown c.h5
}

# Files that are on disk already.
test_disk() {
    on_disk serial step a.h5 1
    cp a.h5 before.h5
    prints 'a.h5 is in no checkpoint and is read from disk' serial shown a.h5
    prints '^1$' serial shown a.h5
    prints '^refused$' serial exists a.h5
    serial change a.h5 2 # taken over
    prints '^2$' serial shown a.h5
    cmp a.h5 before.h5
    serial step b.h5 3
    on_disk serial step b.h5 4
    prints '^3$' serial shown b.h5 # the checkpoint comes first
    serial delete b.h5
    prints '^-1$' serial shown b.h5
    [ ! -e b.h5 ]
    echo 'no HDF5' > c.h5
    prints '^-1$' serial shown c.h5
    on_disk ranks write d.%d.h5 5 5
    prints '^step 5$' ranks read d.%d.h5
    ranks append d.%d.h5
    prints '\(0\): 6$' tool h5dump -a step d.0003.h5
    prints '\(0\): 5$' on_disk tool h5dump -a step d.0003.h5
    rm d.0001.h5
    on_disk ranks write e.%d.h5 6 6
    rm e.0001.h5
    says 'no such file, neither in a checkpoint .* nor on disk of all ranks' ranks append e.%d.h5
}

# A flush is a version, which opens although the program never closed the file.
test_flushed() {
    fails . with flush=yes serial flushed a.h5
    prints '^31$' serial shown a.h5
    serial change a.h5 33
    prints '^33$' serial shown a.h5
    # Neither the creation of a file nor H5Dflush writes all of it, and they take no version.
    fails . with flush=yes serial begun a.h5
    prints '^33$' serial shown a.h5
    fails . serial flushed b.h5
    prints '^-1$' serial shown b.h5
}

# H5Fclose may wait for a level.
test_wait() {
    serial killed a.h5 1 || true
    with wait=system serial killed b.h5 2 || true
    rm -rf local "$BIVOUAC_MEMORY_DIRECTORY"/*
    prints '^2$' serial shown b.h5
    BIVOUAC_GLOBAL_ENABLED=false prints 'was not committed at the level of wait=' with wait=system serial refused c.h5
}

# One run at a time.
test_alive() {
    local pid
    serial waits a.h5 4 > waits.log 2>&1 &
    pid=$!
    until grep -q written waits.log; do sleep 0.1; done
    fails 'Bivouac cannot keep this file: .*(alive|runs|claim)' tool h5dump --enable-error-stack=2 a.h5
    wait $pid
    prints '\(0\): 1$' tool h5dump -a step a.h5
}

all=(serial rules ranks tools disagreement names finalize self damage full configuration disk flushed wait alive)
build_hdf5
for kind in "$@"; do
    programs=$scratch/$kind plugins=$scratch/$kind/plugins preload=()
    case $kind in
    plain) build_driver ;;
    sanitized)
        # MPI and HDF5 leak, and the tools were built without sanitizers.
        export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1
        preload=(LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)")
        build_driver -fsanitize=address,undefined -fno-omit-frame-pointer
        ;;
    own)
        build_driver
        "$tests/own.sh" "$HDF5_SOURCES" "$HDF5_BUILD" "$plugins" "$scratch/own" || failures=$((failures + 1))
        continue
        ;;
    *) echo "$kind: neither plain nor sanitized nor own" >&2 && exit 2 ;;
    esac
    echo "$kind:"
    for test in ${TESTS:-${all[@]}}; do try "$test"; done
done
[ $failures -eq 0 ]

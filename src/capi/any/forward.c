// libbivouac.so for every MPI: each of its functions jumps to the function of that name in the build for the kind of MPI that the
// program has loaded, which is beside it in bivouac/openmpi and bivouac/mpich.
//
// Why two builds and no table of MPI's functions: `MPI_Comm` and its kin are pointers in Open MPI, numbers in MPICH and its kin (Intel
// MPI, Cray MPI, MVAPICH), and constants such as `MPI_COMM_NULL` have other values. The mpi crate has all of that from the headers when it
// is compiled. A jump leaves the registers as they are, so that arguments of both kinds pass. ci/any-mpi.sh writes names.h.
#if !defined(__x86_64__) || !defined(__linux__)
#error "forward.c supports only x86-64 Linux: install the build for your MPI (ci/install.sh)"
#endif
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// FUNCTION(number, name) for each function, and INTERFACE, the version in the name of the library.
#include "names.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static const char *const names[] = {
#define FUNCTION(number, name) [number] = #name,
    FUNCTIONS
#undef FUNCTION
};
enum { COUNT = sizeof(names) / sizeof(names[0]) };

// Where each function jumps to, once `bvk_any_ready` is not 0.
__attribute__((visibility("hidden"))) void *bvk_any_target[COUNT];
__attribute__((visibility("hidden"))) unsigned char bvk_any_ready;
__attribute__((visibility("hidden"), used)) void bvk_any_resolve(void);

// All registers that may hold arguments survive the look for the library. At its entry the stack is aligned to 16 bytes: 7 registers and 136
// bytes keep it so.
__asm__(".text\n"
        ".type bvk_any_prepare, @function\n"
        "bvk_any_prepare:\n"
        "    push %rdi\n    push %rsi\n    push %rdx\n    push %rcx\n    push %r8\n    push %r9\n    push %rax\n"
        "    sub $136, %rsp\n"
        "    movups %xmm0, (%rsp)\n    movups %xmm1, 16(%rsp)\n    movups %xmm2, 32(%rsp)\n    movups %xmm3, 48(%rsp)\n"
        "    movups %xmm4, 64(%rsp)\n    movups %xmm5, 80(%rsp)\n    movups %xmm6, 96(%rsp)\n    movups %xmm7, 112(%rsp)\n"
        "    call bvk_any_resolve\n"
        "    movups (%rsp), %xmm0\n    movups 16(%rsp), %xmm1\n    movups 32(%rsp), %xmm2\n    movups 48(%rsp), %xmm3\n"
        "    movups 64(%rsp), %xmm4\n    movups 80(%rsp), %xmm5\n    movups 96(%rsp), %xmm6\n    movups 112(%rsp), %xmm7\n"
        "    add $136, %rsp\n"
        "    pop %rax\n    pop %r9\n    pop %r8\n    pop %rcx\n    pop %rdx\n    pop %rsi\n    pop %rdi\n"
        "    ret\n"
        ".size bvk_any_prepare, .-bvk_any_prepare\n");

#define FUNCTION(number, name)                                                                                                    \
    __asm__(".globl " #name "\n.type " #name ", @function\n" #name ":\n"                                                          \
            "    endbr64\n    cmpb $0, bvk_any_ready(%rip)\n    jne 1f\n    call bvk_any_prepare\n"                               \
            "1:  jmp *bvk_any_target+8*" #number "(%rip)\n.size " #name ", .-" #name "\n");
FUNCTIONS
#undef FUNCTION

// ------------------------------------------------------------------------------------------- where there is no library

static char problem[8192];

static int no_status(void) { return -4; /* BVK_ERR_OPEN */ }
static const char *no_text(void) { return problem; }
static const char *no_version(void) { return TEXT(INTERFACE); }
static FILE *no_file(void) { return NULL; }

// Says once what is wrong. Every function fails from then on.
__attribute__((format(printf, 1, 2))) static void fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    fprintf(stderr, "libbivouac.so: %s\n", problem);
    for (int number = 0; number < COUNT; number++) {
        const char *name = names[number];
        void *target = (void *)no_status;
        if (!strcmp(name, "bvk_error") || !strcmp(name, "bvk_status_name")) target = (void *)no_text;
        if (!strcmp(name, "bvk_version")) target = (void *)no_version;
        if (!strcmp(name, "bvk_fopen") || !strcmp(name, "bvk_fopen_saved")) target = (void *)no_file;
        bvk_any_target[number] = target;
    }
}

// ------------------------------------------------------------------------------------------- the program's MPI

typedef int version_function(char *text, int *length);

// An object of the process that has MPI's functions, also where it was loaded for itself alone, as Python does. Its symbols are made those of the
// whole process: the builds do not say which library they want, because it has many names.
static int look(struct dl_phdr_info *info, size_t size, void *data) {
    version_function **ask = data;
    (void)size;
    const char *file = strrchr(info->dlpi_name, '/');
    if (!file || strncmp(file, "/libmpi", 7)) return 0;
    void *library = dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return 0;
    *(void **)ask = dlsym(library, "MPI_Get_library_version");
    if (*ask) dlopen(info->dlpi_name, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
    dlclose(library);
    return *ask != NULL;
}

// "openmpi" or "mpich"; NULL if no MPI is loaded.
static const char *kind_of_mpi(void) {
    // As long as the longest answer of any MPI (MPICH: 8192).
    static char text[16384];
    version_function *ask;
    *(void **)&ask = dlsym(RTLD_DEFAULT, "MPI_Get_library_version");
    if (!ask && !dl_iterate_phdr(look, &ask)) return NULL;
    int length = 0;
    ask(text, &length);
    return strstr(text, "Open MPI") ? "openmpi" : "mpich";
}

// ------------------------------------------------------------------------------------------- the library for it

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void connect_all(void) {
    char path[4096];
    Dl_info self;
    const char *kind = kind_of_mpi();
    if (!kind) {
        fail("no MPI library is loaded in this process: link the program with MPI, or import mpi4py first");
        return;
    }
    const char *slash = dladdr((void *)bvk_any_target, &self) ? strrchr(self.dli_fname, '/') : NULL;
    int folder = slash ? (int)(slash - self.dli_fname) : 1;
    snprintf(path, sizeof path, "%.*s/bivouac/%s/libbivouac-%s.so.%s", folder, slash ? self.dli_fname : ".", kind, kind, TEXT(INTERFACE));
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fail("the program's MPI is %s, but Bivouac's build for it cannot be loaded (is it installed?): %s", kind, dlerror());
        return;
    }
    for (int number = 0; number < COUNT; number++) {
        bvk_any_target[number] = dlsym(library, names[number]);
        if (!bvk_any_target[number]) {
            fail("%s has no %s: it is from another version of Bivouac; install both from one version", path, names[number]);
            return;
        }
    }
}

void bvk_any_resolve(void) {
    pthread_mutex_lock(&lock);
    if (!bvk_any_ready) {
        connect_all();
        __atomic_store_n(&bvk_any_ready, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
}

// The header in C++.

#include "veloc.h"

int main() {
    int (*protect)(int, void *, size_t, size_t) = VELOC_Mem_protect;
    return protect(1, nullptr, 0, 0) == VELOC_FAILURE && VELOC_Finalize(1) == VELOC_SUCCESS ? 0 : 1;
}

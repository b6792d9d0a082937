/* Preloaded under HDF5's own tests, whose support library does not know this driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <hdf5.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <H5FDdevelop.h>

/* It refuses names of drivers that it does not know. It is shown no name where it would set the driver, so that the one that HDF5 itself has set
   by the same variable stays. */
char *getenv(const char *name)
{
    static char *(*real)(const char *);
    Dl_info caller;
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "getenv");
    if (strcmp(name, "HDF5_DRIVER") == 0 && dladdr(__builtin_return_address(0), &caller) && caller.dli_sname &&
        strcmp(caller.dli_sname, "h5_get_vfd_fapl") == 0)
        return NULL;
    return real(name);
}

/* It asks the system for the sizes of files. Here the driver is asked. */
off_t h5_get_file_size(const char *name, hid_t fapl);
off_t h5_get_file_size(const char *name, hid_t fapl)
{
    H5FD_t *file = H5FDopen(name, H5F_ACC_RDONLY, fapl, HADDR_UNDEF);
    haddr_t end = file ? H5FDget_eof(file, H5FD_MEM_DEFAULT) : HADDR_UNDEF;
    if (file)
        H5FDclose(file);
    return end == HADDR_UNDEF ? -1 : (off_t)end;
}

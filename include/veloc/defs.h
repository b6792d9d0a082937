// Numbers of VELOC's interface, for programs that are compiled against Bivouac's library for it (docs/VELOC.md).
#ifndef BIVOUAC_VELOC_DEFS_H
#define BIVOUAC_VELOC_DEFS_H

// What every function returns.
#ifndef VELOC_SUCCESS
#define VELOC_SUCCESS (0)
#endif
#ifndef VELOC_FAILURE
#define VELOC_FAILURE (-1)
#endif

// Bytes that the application has for the name of a routed file, including the terminating zero.
#define VELOC_MAX_NAME (1024)

// Which regions a call is about: all, those that are listed, or those that are not.
#define VELOC_CKPT_ALL (0)
#define VELOC_CKPT_SOME (1)
#define VELOC_CKPT_REST (2)
#define VELOC_RECOVER_ALL (0)
#define VELOC_RECOVER_SOME (1)
#define VELOC_RECOVER_REST (2)

// What an observer of veloc.hpp is called for: the end of each checkpoint.
#define VELOC_OBSERVE_CKPT_END (0)

#endif

/* The macros and casts of MPI's C interface, which cannot be linked, as constants and functions with names that begin with RSMPI_. */
#ifndef SHIM_H
#define SHIM_H

#include <mpi.h>

/* Each of(type, name, value) makes a constant RSMPI_name. */
#define SHIM_CONSTANTS(of)                                        \
    of(MPI_Comm, COMM_WORLD, MPI_COMM_WORLD)                      \
    of(MPI_Comm, COMM_SELF, MPI_COMM_SELF)                        \
    of(MPI_Comm, COMM_NULL, MPI_COMM_NULL)                        \
    of(int, COMM_TYPE_SHARED, MPI_COMM_TYPE_SHARED)               \
    of(MPI_Group, GROUP_EMPTY, MPI_GROUP_EMPTY)                   \
    of(MPI_Group, GROUP_NULL, MPI_GROUP_NULL)                     \
    of(MPI_Info, INFO_NULL, MPI_INFO_NULL)                        \
    of(MPI_Message, MESSAGE_NULL, MPI_MESSAGE_NULL)               \
    of(MPI_Message, MESSAGE_NO_PROC, MPI_MESSAGE_NO_PROC)         \
    of(MPI_Request, REQUEST_NULL, MPI_REQUEST_NULL)               \
    of(MPI_Errhandler, ERRORS_RETURN, MPI_ERRORS_RETURN)          \
    of(MPI_Errhandler, ERRORS_ARE_FATAL, MPI_ERRORS_ARE_FATAL)    \
    of(MPI_Datatype, DATATYPE_NULL, MPI_DATATYPE_NULL)            \
    of(MPI_Datatype, C_BOOL, MPI_C_BOOL)                          \
    of(MPI_Datatype, FLOAT, MPI_FLOAT)                            \
    of(MPI_Datatype, DOUBLE, MPI_DOUBLE)                          \
    of(MPI_Datatype, FLOAT_COMPLEX, MPI_C_FLOAT_COMPLEX)          \
    of(MPI_Datatype, DOUBLE_COMPLEX, MPI_C_DOUBLE_COMPLEX)        \
    of(MPI_Datatype, INT8_T, MPI_INT8_T)                          \
    of(MPI_Datatype, INT16_T, MPI_INT16_T)                        \
    of(MPI_Datatype, INT32_T, MPI_INT32_T)                        \
    of(MPI_Datatype, INT64_T, MPI_INT64_T)                        \
    of(MPI_Datatype, UINT8_T, MPI_UINT8_T)                        \
    of(MPI_Datatype, UINT16_T, MPI_UINT16_T)                      \
    of(MPI_Datatype, UINT32_T, MPI_UINT32_T)                      \
    of(MPI_Datatype, UINT64_T, MPI_UINT64_T)                      \
    of(MPI_Op, MAX, MPI_MAX)                                      \
    of(MPI_Op, MIN, MPI_MIN)                                      \
    of(MPI_Op, SUM, MPI_SUM)                                      \
    of(MPI_Op, PROD, MPI_PROD)                                    \
    of(MPI_Op, LAND, MPI_LAND)                                    \
    of(MPI_Op, LOR, MPI_LOR)                                      \
    of(MPI_Op, LXOR, MPI_LXOR)                                    \
    of(MPI_Op, BAND, MPI_BAND)                                    \
    of(MPI_Op, BOR, MPI_BOR)                                      \
    of(MPI_Op, BXOR, MPI_BXOR)                                    \
    of(int, UNDEFINED, MPI_UNDEFINED)                             \
    of(int, PROC_NULL, MPI_PROC_NULL)                             \
    of(int, ANY_SOURCE, MPI_ANY_SOURCE)                           \
    of(int, ANY_TAG, MPI_ANY_TAG)                                 \
    of(int, IDENT, MPI_IDENT)                                     \
    of(int, CONGRUENT, MPI_CONGRUENT)                             \
    of(int, SIMILAR, MPI_SIMILAR)                                 \
    of(int, UNEQUAL, MPI_UNEQUAL)                                 \
    of(int, THREAD_SINGLE, MPI_THREAD_SINGLE)                     \
    of(int, THREAD_FUNNELED, MPI_THREAD_FUNNELED)                 \
    of(int, THREAD_SERIALIZED, MPI_THREAD_SERIALIZED)             \
    of(int, THREAD_MULTIPLE, MPI_THREAD_MULTIPLE)                 \
    of(int, GRAPH, MPI_GRAPH)                                     \
    of(int, CART, MPI_CART)                                       \
    of(int, DIST_GRAPH, MPI_DIST_GRAPH)                           \
    of(int, MAX_LIBRARY_VERSION_STRING, MPI_MAX_LIBRARY_VERSION_STRING) \
    of(int, MAX_PROCESSOR_NAME, MPI_MAX_PROCESSOR_NAME)

#define SHIM_DECLARE(type, name, value) extern const type RSMPI_##name;
SHIM_CONSTANTS(SHIM_DECLARE)

extern MPI_Status *const RSMPI_STATUS_IGNORE;

/* MPI_Fint may be a macro. */
typedef MPI_Fint RSMPI_Fint;

double RSMPI_Wtime(void);
double RSMPI_Wtick(void);
RSMPI_Fint RSMPI_Comm_c2f(MPI_Comm comm);
MPI_Comm RSMPI_Comm_f2c(RSMPI_Fint comm);

#endif

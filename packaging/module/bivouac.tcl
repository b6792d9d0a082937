#%Module1.0
# A module for Environment Modules and Lmod. Put it where `module use` looks, as bivouac/VERSION.tcl (Lmod) or bivouac/VERSION, and name the
# prefix of ci/install.sh. Before this module, load the module of the MPI that Bivouac was built with.
set prefix PREFIX

module-whatis "Bivouac: collective checkpoint and restart for MPI simulations"
proc ModulesHelp { } {
    puts stderr "Bivouac: libraries for C, C++ and Fortran, the command bivouac and its manual pages (man bivouac)."
}
conflict bivouac

prepend-path PATH            $prefix/bin
prepend-path LD_LIBRARY_PATH $prefix/lib
prepend-path LIBRARY_PATH    $prefix/lib
prepend-path CPATH           $prefix/include
prepend-path PKG_CONFIG_PATH $prefix/lib/pkgconfig
prepend-path CMAKE_PREFIX_PATH $prefix
prepend-path MANPATH         $prefix/share/man
prepend-path PYTHONPATH      $prefix/share/bivouac/python
setenv       BIVOUAC_ROOT    $prefix

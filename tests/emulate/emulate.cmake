# The CUDA kernels as C++ for the emulated runtime beside this file. What needs Hopper's instructions, cuBLASLt or CUPTI
# is left out (absent.cpp).
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(emulate ${CMAKE_SOURCE_DIR}/tests/emulate)
set(emulated ${CMAKE_BINARY_DIR}/emulated)
file(GLOB_RECURSE cuda_files RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS src/device/*.cu src/ops/*.cu src/comm/*.cu src/scan/*.cu
     src/delta/*.cu src/attention/*.cu src/device/*.cuh src/ops/*.cuh src/scan/*.cuh src/delta/*.cuh src/attention/*.cuh
     src/engine/cuda/chain_attend.cu src/engine/cuda/chain_attend.cuh src/engine/cuda/chain_heads.cuh
     src/engine/cuda/chain_items.cuh src/engine/cuda/chain_tiles.cuh src/engine/cuda/chain_scores.cuh
     src/engine/cuda/chain_kernel.cuh src/engine/cuda/chain_launch.cuh)
include(cmake/instances.cmake)
carry_make_instances(bodies instances)
list(FILTER cuda_files EXCLUDE REGEX "hopper|ops/cuda/blaslt|device/(cuda_activity|cuda_share|gpu)\\.cu$|comm/cuda/sums_system")
list(FILTER cuda_files EXCLUDE REGEX "delta/cuda/chunk/.*\\.cuh$|delta/cuda/chunk/(split|forward|keys|backward|gradients|scan)\\.cu$")
list(FILTER instances EXCLUDE REGEX "hopper|delta/cuda/chunk/")
foreach(file ${cuda_files} ${instances})
  cmake_path(ABSOLUTE_PATH file BASE_DIRECTORY ${CMAKE_SOURCE_DIR} OUTPUT_VARIABLE from)
  string(REPLACE ${CMAKE_BINARY_DIR}/ "" name ${file})
  string(REGEX REPLACE "\\.cu$" ".cpp" made ${emulated}/${name})
  get_filename_component(folder ${made} DIRECTORY)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(OUTPUT ${made} COMMAND ${Python3_EXECUTABLE} ${emulate}/translate.py ${from} ${made}
                     DEPENDS ${from} ${emulate}/translate.py)
  if(made MATCHES "\\.cuh$" OR file IN_LIST bodies)
    list(APPEND emulated_headers ${made})
  else()
    list(APPEND emulated_sources ${made})
  endif()
endforeach()
list(APPEND emulated_sources ${emulate}/runtime.cpp ${emulate}/fibres.cpp ${emulate}/absent.cpp)
set_source_files_properties(${emulated_sources} PROPERTIES OBJECT_DEPENDS "${emulated_headers}"
  COMPILE_OPTIONS "-std=c++20;-O2;-w;-U_FORTIFY_SOURCE" INCLUDE_DIRECTORIES "${emulated}/src;${emulate}/include;${emulate}")
# The scans move elements as words of up to 16 bytes, which a C++ compiler may take apart.
foreach(file ${emulated_sources})
  if(file MATCHES "scan/cuda/")
    set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -fno-strict-aliasing)
  endif()
endforeach()
if(CARRY_CUDA_QUICK) # operators and models hardly use scans and delta, and -O1 saves more to compile than their tests lose
  foreach(file ${emulated_sources})
    if(file MATCHES "/(scan|delta)/cuda/")
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -O0)
    else()
      set_property(SOURCE ${file} APPEND PROPERTY COMPILE_OPTIONS -O1)
    endif()
  endforeach()
endif()
target_sources(carry_objects PRIVATE ${emulated_sources})
target_compile_definitions(carry_objects PRIVATE CARRY_HAVE_CUDA)
# -Bsymbolic: calls stay inside although PyTorch brings the real runtime into the same process.
list(APPEND carry_private_libraries stdc++ ${CMAKE_DL_LIBS} -Wl,-Bsymbolic)
message(STATUS "carry: CUDA kernels on an emulated GPU")

# CUDA sources that are compiled several times: BODY (in src), its types, and its shapes or - for none. Each combination
# becomes a source in build/<preset>/instances that defines CARRY_INSTANCE_F16 (for f16) and CARRY_INSTANCE_SHAPE and
# includes the body, so that they compile in parallel and f16 has its own namespaces. A body is not compiled by itself.
set(carry_instances
  "delta/cuda/keys/prepare.cu     bf16,f16 -"
  "delta/cuda/keys/walk.cu        bf16,f16 -"
  "delta/cuda/keys/back_walk.cu   bf16,f16 -"
  "delta/cuda/keys/values.cu      bf16,f16 -"
  "delta/cuda/keys/gradients.cu   bf16,f16 -"
  "delta/cuda/chunk/forward.cu    bf16,f16 -"
  "delta/cuda/chunk/keys.cu       bf16,f16 -"
  "delta/cuda/chunk/backward.cu   bf16,f16 -"
  "delta/cuda/chunk/gradients.cu  bf16,f16 -"
  "delta/cuda/chunk/scan.cu       bf16,f16 forward,forward_wide,forward_keys,forward_pairs"
  "delta/cuda/chunk/scan.cu       bf16,f16 keyed,keyed_wide,keyed_pairs"
  "delta/cuda/chunk/scan.cu       bf16,f16 backward,backward_wide,backward_keys,backward_pairs"
  "ops/cuda/conv2d_hopper_tiles.cu bf16    flat_192,flat_128,wide_96,wide_96_of_96,flat_64,flat_64_of_32,wide_8"
  "ops/cuda/grouped_hopper.cu     bf16,f16 -"
  "ops/cuda/grouped_hopper_wide.cu bf16,f16 -"
  "ops/cuda/ssm_hopper.cu         bf16,f16 -"
  "ops/cuda/ssm_hopper_backward.cu bf16,f16 -"
  "ops/cuda/conv2d_hopper_tiles.cu bf16    flat_8_of_96,wide_8_of_32")

# Sets ${bodies} (relative to the source tree) and ${sources} (the generated files).
function(carry_make_instances bodies sources)
  foreach(row IN LISTS carry_instances)
    separate_arguments(row UNIX_COMMAND "${row}")
    list(GET row 0 body)
    list(GET row 1 types)
    list(GET row 2 shapes)
    string(REPLACE "," ";" types ${types})
    string(REPLACE "," ";" shapes ${shapes})
    list(APPEND found src/${body})
    foreach(type IN LISTS types)
      foreach(shape IN LISTS shapes)
        set(text "")
        string(REGEX REPLACE "\\.cu$" "_${type}" name ${body})
        if(type STREQUAL "f16")
          string(APPEND text "#define CARRY_INSTANCE_F16\n")
        endif()
        if(NOT shape STREQUAL "-")
          string(APPEND text "#define CARRY_INSTANCE_SHAPE ${shape}\n")
          string(APPEND name "_${shape}")
        endif()
        set(file ${CMAKE_BINARY_DIR}/instances/${name}.cu)
        file(CONFIGURE OUTPUT ${file} CONTENT "${text}#include \"${body}\"\n" @ONLY)
        list(APPEND made ${file})
      endforeach()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${bodies} ${found} PARENT_SCOPE)
  set(${sources} ${made} PARENT_SCOPE)
endfunction()

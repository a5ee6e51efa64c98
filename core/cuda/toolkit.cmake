# The CUDA Toolkit for TTRAIN_DEVICE=cuda: the language, and the target ttrain_cuda_libraries.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME PATH_SUFFIXES bin
                 PATHS /usr/local/cuda/bin)
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
# With the runtime inside, the program starts where there is no driver, and says so.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.5)
    message(FATAL_ERROR "The CUDA device needs the CUDA Toolkit 12.5 or newer (grouped products), "
                        "found ${CMAKE_CUDA_COMPILER_VERSION}")
endif()
find_package(CUDAToolkit REQUIRED)
find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)

# Lines of source in profiles; it doubles the size of a program.
set(cuda_flags $<$<CONFIG:Debug,RelWithDebInfo>:-lineinfo> -Xcompiler=-Wall,-Wextra)
if(TTRAIN_WERROR)
    list(APPEND cuda_flags --Werror=all-warnings -Xcompiler=-Werror)
endif()

add_library(ttrain_cuda INTERFACE)
target_compile_options(ttrain_cuda INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
target_compile_definitions(ttrain_cuda INTERFACE TTRAIN_CUDA)
target_include_directories(ttrain_cuda SYSTEM INTERFACE ${NCCL_INCLUDE_DIR}
                                                        ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(ttrain_cuda INTERFACE CUDA::cublas CUDA::cublasLt CUDA::cudart_static
                                            ${NCCL_LIBRARY})

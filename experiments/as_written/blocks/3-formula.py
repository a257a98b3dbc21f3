# 메모리 사용량 예측 (bytes)
M ≈ P × D_param + B × A × D_act + O × D_opt

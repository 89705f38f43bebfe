//! The messages of an ONNX file that tests write. Follows `onnx.proto` of the ONNX specification.

use prost::Message;

/// `TensorProto.DataType`.
pub(super) const FLOAT: i32 = 1;
/// `AttributeProto.AttributeType`.
pub(super) const INT: i32 = 2;

impl ValueInfo {
    /// Describes a tensor; a dimension given as text is a name.
    pub(super) fn tensor(name: &str, element: i32, dims: &[&str]) -> ValueInfo {
        #[derive(Message)]
        struct TypeProto {
            #[prost(message, optional, tag = "1")]
            tensor: Option<TensorType>,
        }
        #[derive(Message)]
        struct TensorType {
            #[prost(int32, optional, tag = "1")]
            element: Option<i32>,
            #[prost(message, optional, tag = "2")]
            shape: Option<Shape>,
        }
        #[derive(Message)]
        struct Shape {
            #[prost(message, repeated, tag = "1")]
            dims: Vec<Dimension>,
        }
        #[derive(Message)]
        struct Dimension {
            #[prost(int64, optional, tag = "1")]
            value: Option<i64>,
            #[prost(string, optional, tag = "2")]
            name: Option<String>,
        }
        let dimension = |dim: &&str| match dim.parse() {
            Ok(value) => Dimension { value: Some(value), name: None },
            Err(_) => Dimension { value: None, name: Some((*dim).to_owned()) },
        };
        let shape = Shape { dims: dims.iter().map(dimension).collect() };
        let kind = TypeProto { tensor: Some(TensorType { element: Some(element), shape: Some(shape) }) };
        ValueInfo { name: Some(name.to_owned()), value_type: Some(kind.encode_to_vec()) }
    }
}

/// `ModelProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OnnxModel {
    #[prost(int64, optional, tag = "1")]
    pub(super) ir_version: Option<i64>,
    #[prost(message, optional, tag = "7")]
    pub(super) graph: Option<OnnxGraph>,
    #[prost(message, repeated, tag = "8")]
    pub(super) opset_import: Vec<Opset>,
}

/// `OperatorSetIdProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Opset {
    #[prost(string, optional, tag = "1")]
    pub(super) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(super) version: Option<i64>,
}

/// `GraphProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OnnxGraph {
    #[prost(message, repeated, tag = "1")]
    pub(super) node: Vec<OnnxNode>,
    #[prost(string, optional, tag = "2")]
    pub(super) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) initializer: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "11")]
    pub(super) input: Vec<Vec<u8>>,
    #[prost(message, repeated, tag = "12")]
    pub(super) output: Vec<ValueInfo>,
}

/// `ValueInfoProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) value_type: Option<Vec<u8>>,
}

/// `NodeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OnnxNode {
    #[prost(string, repeated, tag = "1")]
    pub(super) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(super) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(super) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(super) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) attribute: Vec<Attribute>,
}

/// `AttributeProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(super) i: Option<i64>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(super) ints: Vec<i64>,
    #[prost(int32, optional, tag = "20")]
    pub(super) kind: Option<i32>,
}

/// `TensorProto`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(super) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(super) data_type: Option<i32>,
    #[prost(string, optional, tag = "8")]
    pub(super) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub(super) raw_data: Option<Vec<u8>>,
}
